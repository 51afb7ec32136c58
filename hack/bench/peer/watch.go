// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lastRound is the spec.round of an Item that nobody writes to any more; see kinds.py.
const lastRound = 1_000_000

// watchItems is ready when it has reconciled every Item once, and done when each is at its last
// round.
func watchItems(ctx context.Context, s *subject) error {
	if err := s.connect(); err != nil {
		return err
	}
	mgr, err := s.manager()
	if err != nil {
		return err
	}
	seen, ended := newTally(s.count), newTally(s.count)
	err = ctrl.NewControllerManagedBy(mgr).
		For(&Item{}).
		Complete(&roundReconciler{client: mgr.GetClient(), seen: seen, ended: ended})
	if err != nil {
		return err
	}
	start(ctx, mgr)
	<-seen.reached
	if err := s.awaitGo(); err != nil {
		return err
	}
	<-ended.reached
	return s.finish()
}

type roundReconciler struct {
	client      client.Client
	seen, ended *tally
}

// Reconcile reads the Item and writes nothing.
func (r *roundReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	item := &Item{}
	if err := r.client.Get(ctx, req.NamespacedName, item); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.seen.count(req.Name)
	if item.Spec.Round == lastRound {
		r.ended.count(req.Name)
	}
	return ctrl.Result{}, nil
}
