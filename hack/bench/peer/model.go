// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var modelVersion = schema.GroupVersion{Group: "ai.flexinfer", Version: "v1alpha2"}

// ModelSpec holds the fields of a Model's spec that Models of a benchmark have; like the rest of
// them, those that are left out here take no memory when they are not set.
type ModelSpec struct {
	Backend         string                       `json:"backend"`
	Source          string                       `json:"source"`
	GPU             *GPUSpec                     `json:"gpu,omitempty"`
	Serverless      *ServerlessSpec              `json:"serverless,omitempty"`
	Cache           *CacheSpec                   `json:"cache,omitempty"`
	Config          map[string]string            `json:"config,omitempty"`
	Resources       *corev1.ResourceRequirements `json:"resources,omitempty"`
	NodeSelector    map[string]string            `json:"nodeSelector,omitempty"`
	Tolerations     []corev1.Toleration          `json:"tolerations,omitempty"`
	ServiceLabels   []string                     `json:"serviceLabels,omitempty"`
	Image           string                       `json:"image,omitempty"`
	ImagePullPolicy corev1.PullPolicy            `json:"imagePullPolicy,omitempty"`
}

// GPUSpec asks for GPUs.
type GPUSpec struct {
	Vendor   string `json:"vendor,omitempty"`
	Count    int32  `json:"count,omitempty"`
	Shared   string `json:"shared,omitempty"`
	Priority int32  `json:"priority,omitempty"`
}

// ServerlessSpec says how far a Model scales down.
type ServerlessSpec struct {
	Enabled          bool   `json:"enabled"`
	MinReplicas      int32  `json:"minReplicas,omitempty"`
	IdleTimeout      string `json:"idleTimeout,omitempty"`
	ColdStartTimeout string `json:"coldStartTimeout,omitempty"`
}

// CacheSpec says where weights are kept.
type CacheSpec struct {
	Strategy string `json:"strategy,omitempty"`
	PVCName  string `json:"pvcName,omitempty"`
	Size     string `json:"size,omitempty"`
	HostPath string `json:"hostPath,omitempty"`
	Revision string `json:"revision,omitempty"`
}

// CacheStatus says where weights are.
type CacheStatus struct {
	Strategy string `json:"strategy,omitempty"`
	Ready    bool   `json:"ready,omitempty"`
	PVCName  string `json:"pvcName,omitempty"`
	Message  string `json:"message,omitempty"`
}

// ModelStatus says how a Model is doing.
type ModelStatus struct {
	Phase              string             `json:"phase,omitempty"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
	Endpoint           string             `json:"endpoint,omitempty"`
	Cache              *CacheStatus       `json:"cache,omitempty"`
	LastActiveTime     *metav1.Time       `json:"lastActiveTime,omitempty"`
	Message            string             `json:"message,omitempty"`
}

// Model is what `flexinfer manager` reconciles.
type Model struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ModelSpec   `json:"spec"`
	Status ModelStatus `json:"status,omitempty"`
}

// ModelList is what a list answers.
type ModelList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Model `json:"items"`
}

// DeepCopyInto copies as controller-gen would write it.
func (in *Model) DeepCopyInto(out *Model) {
	*out = *in
	in.ObjectMeta.DeepCopyInto(&out.ObjectMeta)
	out.Spec.GPU = copyOf(in.Spec.GPU)
	out.Spec.Serverless = copyOf(in.Spec.Serverless)
	out.Spec.Cache = copyOf(in.Spec.Cache)
	out.Spec.Config = maps.Clone(in.Spec.Config)
	out.Spec.Resources = in.Spec.Resources.DeepCopy()
	out.Spec.NodeSelector = maps.Clone(in.Spec.NodeSelector)
	out.Spec.Tolerations = slices.Clone(in.Spec.Tolerations)
	out.Spec.ServiceLabels = slices.Clone(in.Spec.ServiceLabels)
	out.Status.Conditions = copyConditions(in.Status.Conditions)
	out.Status.Cache = copyOf(in.Status.Cache)
	out.Status.LastActiveTime = in.Status.LastActiveTime.DeepCopy()
}

func copyOf[T any](in *T) *T {
	if in == nil {
		return nil
	}
	out := *in
	return &out
}

// DeepCopyObject copies the object.
func (in *Model) DeepCopyObject() runtime.Object {
	out := new(Model)
	in.DeepCopyInto(out)
	return out
}

// DeepCopyObject copies the list.
func (in *ModelList) DeepCopyObject() runtime.Object {
	out := new(ModelList)
	*out = *in
	in.ListMeta.DeepCopyInto(&out.ListMeta)
	out.Items = make([]Model, len(in.Items))
	for i := range in.Items {
		in.Items[i].DeepCopyInto(&out.Items[i])
	}
	return out
}

func addModels(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(modelVersion, &Model{}, &ModelList{})
	metav1.AddToGroupVersion(scheme, modelVersion)
	return nil
}
