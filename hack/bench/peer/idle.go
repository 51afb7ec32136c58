// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/http"
	"os"
	"sync/atomic"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	modelLabel   = "flexinfer.ai/model"
	modelWorkers = 4 // as `flexinfer manager` has it by default
)

// idleModels keeps the informers of `flexinfer manager` and, for each Model, reads what it owns.
//
// It serves metrics and probes where METRICS_ADDRESS and PROBE_ADDRESS say; like those of
// `flexinfer manager`, /readyz answers when every informer has synced. No line is read: it runs
// until stdin closes.
func idleModels(ctx context.Context, s *subject) error {
	labelled, err := labels.Parse(modelLabel)
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(s.config, ctrl.Options{
		Scheme:                 newScheme(),
		Metrics:                metricsserver.Options{BindAddress: os.Getenv("METRICS_ADDRESS")},
		HealthProbeBindAddress: os.Getenv("PROBE_ADDRESS"),
		Cache: cache.Options{
			ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: labelled}},
		},
	})
	if err != nil {
		return err
	}
	if err := setUpModels(mgr); err != nil {
		return err
	}
	if err := tellReady(mgr); err != nil {
		return err
	}
	start(ctx, mgr)
	return s.finish()
}

// tellReady lets /readyz answer once each informer has synced. The cache's own WaitForCacheSync says
// yes before the controller has asked for any.
func tellReady(mgr ctrl.Manager) error {
	var synced atomic.Bool
	wait := func(ctx context.Context) error {
		kinds := []client.Object{
			&Model{}, &appsv1.Deployment{}, &corev1.Service{}, &batchv1.Job{},
			&corev1.Pod{}, &corev1.PersistentVolumeClaim{}, &corev1.Node{},
		}
		for _, kind := range kinds {
			if _, err := mgr.GetCache().GetInformer(ctx, kind); err != nil {
				return err
			}
		}
		synced.Store(true)
		return nil
	}
	if err := mgr.Add(manager.RunnableFunc(wait)); err != nil {
		return err
	}
	return mgr.AddReadyzCheck("informers", func(*http.Request) error {
		if !synced.Load() {
			return errors.New("an informer has not synced")
		}
		return nil
	})
}

func setUpModels(mgr ctrl.Manager) error {
	models := mgr.GetClient()
	err := mgr.GetFieldIndexer().IndexField(context.Background(), &corev1.Pod{}, modelLabel,
		func(pod client.Object) []string { return []string{pod.GetLabels()[modelLabel]} })
	if err != nil {
		return err
	}
	byLabel := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, pod client.Object) []reconcile.Request {
		key := types.NamespacedName{Namespace: pod.GetNamespace(), Name: pod.GetLabels()[modelLabel]}
		return []reconcile.Request{{NamespacedName: key}}
	})
	none := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return nil
	})
	return ctrl.NewControllerManagedBy(mgr).
		For(&Model{}).
		Owns(&appsv1.Deployment{}).
		Owns(&corev1.Service{}).
		Owns(&batchv1.Job{}).
		Watches(&corev1.Pod{}, byLabel).
		Watches(&corev1.PersistentVolumeClaim{}, none).
		Watches(&corev1.Node{}, none).
		WithOptions(controller.Options{MaxConcurrentReconciles: modelWorkers}).
		Complete(&modelReconciler{client: models})
}

type modelReconciler struct {
	client client.Client
}

// Reconcile reads a Model, its Deployment and its Service, and finds that nothing is to be done.
func (r *modelReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	model := &Model{}
	if err := r.client.Get(ctx, req.NamespacedName, model); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	for _, child := range []client.Object{&appsv1.Deployment{}, &corev1.Service{}} {
		if err := r.client.Get(ctx, req.NamespacedName, child); client.IgnoreNotFound(err) != nil {
			return ctrl.Result{}, err
		}
		if child.GetUID() != "" && !metav1.IsControlledBy(child, model) {
			return ctrl.Result{}, reconcile.TerminalError(errors.New("not ours"))
		}
	}
	return ctrl.Result{}, nil
}
