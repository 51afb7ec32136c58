//go:build binaries

// Package binaries pins the main package that flexinfer.envtest builds.
package binaries

import _ "go.etcd.io/etcd/server/v3"
