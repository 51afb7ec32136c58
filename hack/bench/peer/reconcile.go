// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"maps"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
)

const (
	fieldManager = "bench"
	workers      = 16
)

// reconcileItems applies a child for every Item and patches its status, with sixteen workers.
func reconcileItems(ctx context.Context, s *subject) error {
	if err := s.connect(); err != nil {
		return err
	}
	if err := s.awaitGo(); err != nil {
		return err
	}
	mgr, err := s.manager()
	if err != nil {
		return err
	}
	all := newTally(s.count)
	err = ctrl.NewControllerManagedBy(mgr).
		For(&Item{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Owns(&corev1.ConfigMap{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(&itemReconciler{client: mgr.GetClient(), all: all})
	if err != nil {
		return err
	}
	start(ctx, mgr)
	<-all.reached
	return s.finish()
}

type itemReconciler struct {
	client client.Client
	all    *tally
}

// Reconcile writes nothing that the cache shows to be there already, as a careful author would.
func (r *itemReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	item := &Item{}
	if err := r.client.Get(ctx, req.NamespacedName, item); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if err := r.applyChild(ctx, item); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.patchStatus(ctx, item); err != nil {
		return ctrl.Result{}, err
	}
	r.all.count(req.Name)
	return ctrl.Result{}, nil
}

func (r *itemReconciler) applyChild(ctx context.Context, item *Item) error {
	data := map[string]string{
		"number": strconv.FormatInt(item.Spec.Number, 10),
		"size":   strconv.Itoa(len(item.Spec.Payload)),
	}
	live := &corev1.ConfigMap{}
	err := r.client.Get(ctx, client.ObjectKeyFromObject(item), live)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if err == nil && metav1.IsControlledBy(live, item) && maps.Equal(live.Data, data) {
		return nil
	}
	child := corev1ac.ConfigMap(item.Name, item.Namespace).
		WithLabels(map[string]string{"app.kubernetes.io/managed-by": fieldManager}).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(itemVersion.String()).
			WithKind("Item").
			WithName(item.Name).
			WithUID(item.UID).
			WithController(true).
			WithBlockOwnerDeletion(true)).
		WithData(data)
	return r.client.Apply(ctx, child, client.FieldOwner(fieldManager), client.ForceOwnership)
}

func (r *itemReconciler) patchStatus(ctx context.Context, item *Item) error {
	before := item.DeepCopy()
	item.Status.ObservedGeneration = item.Generation
	meta.SetStatusCondition(&item.Status.Conditions, metav1.Condition{
		Type:               "Ready",
		Status:             metav1.ConditionTrue,
		Reason:             "Applied",
		Message:            "the child is applied",
		ObservedGeneration: item.Generation,
	})
	if equality.Semantic.DeepEqual(before.Status, item.Status) {
		return nil
	}
	return r.client.Status().Patch(ctx, item, client.MergeFrom(before), client.FieldOwner(fieldManager))
}

// A tally closes reached when it has counted so many different names.
type tally struct {
	mutex   sync.Mutex
	names   map[string]struct{}
	wanted  int
	reached chan struct{}
}

func newTally(wanted int) *tally {
	return &tally{names: make(map[string]struct{}, wanted), wanted: wanted, reached: make(chan struct{})}
}

func (t *tally) count(name string) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if _, known := t.names[name]; known {
		return
	}
	t.names[name] = struct{}{}
	if len(t.names) == t.wanted {
		close(t.reached)
	}
}
