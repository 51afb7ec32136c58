// SPDX-License-Identifier: Apache-2.0

package main

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var itemVersion = schema.GroupVersion{Group: "bench.flexinfer.ai", Version: "v1"}

// ItemSpec is what kinds.py calls ItemSpec.
type ItemSpec struct {
	Replicas int32  `json:"replicas,omitempty"`
	Number   int64  `json:"number"`
	Round    int64  `json:"round,omitempty"`
	Payload  string `json:"payload,omitempty"`
}

// ItemStatus is what kinds.py calls ItemStatus.
type ItemStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// Item is the custom resource of the benchmark.
type Item struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ItemSpec   `json:"spec,omitempty"`
	Status ItemStatus `json:"status,omitempty"`
}

// ItemList is what a list answers.
type ItemList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Item `json:"items"`
}

// DeepCopyInto copies as controller-gen would write it.
func (in *Item) DeepCopyInto(out *Item) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Status.Conditions = copyConditions(in.Status.Conditions)
}

// DeepCopy copies the object.
func (in *Item) DeepCopy() *Item {
	out := new(Item)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies the object.
func (in *Item) DeepCopyObject() runtime.Object { return in.DeepCopy() }

// DeepCopyObject copies the list.
func (in *ItemList) DeepCopyObject() runtime.Object {
	out := new(ItemList)
	*out = *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Item, len(in.Items))
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

func copyConditions(in []metav1.Condition) []metav1.Condition {
	if in == nil {
		return nil
	}
	out := make([]metav1.Condition, len(in))
	for i := range in {
		in[i].DeepCopyInto(&out[i])
	}
	return out
}

func addItems(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(itemVersion, &Item{}, &ItemList{})
	metav1.AddToGroupVersion(scheme, itemVersion)
	return nil
}
