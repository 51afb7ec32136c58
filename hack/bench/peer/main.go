// SPDX-License-Identifier: Apache-2.0

// Command peer is the benchmark's subject on controller-runtime. It keeps the protocol that
// subject.py describes: connect, say ready, read a line, work, say done, stay until stdin closes.
//
// usage: peer sync|reconcile|watch|idle SERVICE_ACCOUNT_FOLDER SERVER COUNT
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// A subject is one process of the benchmark. Its lines to the harness go through it.
type subject struct {
	config *rest.Config
	count  int
	stdin  *bufio.Reader
}

var works = map[string]func(context.Context, *subject) error{
	"sync":      syncItems,
	"reconcile": reconcileItems,
	"watch":     watchItems,
	"idle":      idleModels,
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "peer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("want WORK FOLDER SERVER COUNT, not %q", args)
	}
	work, known := works[args[0]]
	if !known {
		return fmt.Errorf("no work %q", args[0])
	}
	count, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	ctrl.SetLogger(zap.New())
	s := &subject{config: inCluster(args[1], args[2]), count: count, stdin: bufio.NewReader(os.Stdin)}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	return work(ctx, s)
}

// inCluster is rest.InClusterConfig with another folder and server.
func inCluster(folder, server string) *rest.Config {
	return &rest.Config{
		Host:            server,
		BearerTokenFile: filepath.Join(folder, "token"),
		TLSClientConfig: rest.TLSClientConfig{CAFile: filepath.Join(folder, "ca.crt")},
		QPS:             -1, // no limit on the client's side
	}
}

// connect sends one request, which reads the credentials and opens a connection.
func (s *subject) connect() error {
	client, err := discovery.NewDiscoveryClientForConfig(s.config)
	if err != nil {
		return err
	}
	_, err = client.ServerVersion()
	return err
}

// awaitGo says ready and returns when the harness says go.
func (s *subject) awaitGo() error {
	fmt.Println("ready")
	_, err := s.stdin.ReadString('\n')
	return err
}

// finish says done and returns when stdin closes.
func (s *subject) finish() error {
	fmt.Println("done")
	_, err := io.Copy(io.Discard, s.stdin)
	return err
}

// manager makes a manager as the works have it: without metrics, probes and election.
func (s *subject) manager() (ctrl.Manager, error) {
	return ctrl.NewManager(s.config, ctrl.Options{
		Scheme:                 newScheme(),
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
}

func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, addItems, addModels} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}

// start runs the manager beside the work; a manager that fails ends the process.
func start(ctx context.Context, mgr ctrl.Manager) {
	go func() {
		if err := mgr.Start(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "peer: manager:", err)
			os.Exit(1)
		}
	}()
}
