//go:build binaries

// Package binaries pins the main packages that flexinfer.envtest builds; the build tag keeps
// them out of every build while `go mod tidy` still sees what they need.
package binaries

import (
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
)
