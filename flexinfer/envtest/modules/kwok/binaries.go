//go:build binaries

// Package binaries pins the main package that flexinfer.envtest builds.
package binaries

import _ "sigs.k8s.io/kwok/cmd/kwok"
