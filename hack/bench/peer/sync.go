// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// syncItems lists every Item into the manager's cache, as typed structs.
func syncItems(ctx context.Context, s *subject) error {
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
	informer, err := mgr.GetCache().GetInformer(ctx, &Item{}, cache.BlockUntilSynced(false))
	if err != nil {
		return err
	}
	start(ctx, mgr)
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		return errors.New("the cache did not sync")
	}
	// The names alone: a look at the objects would copy them.
	keys := informer.(toolscache.SharedIndexInformer).GetStore().ListKeys()
	if len(keys) != s.count {
		return fmt.Errorf("the cache holds %d objects, not %d", len(keys), s.count)
	}
	return s.finish()
}
