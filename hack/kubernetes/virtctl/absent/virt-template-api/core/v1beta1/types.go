// Package v1beta1 has what an informer that virtctl never starts refers to.
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// VirtualMachineTemplate is an object without content.
type VirtualMachineTemplate struct {
	metav1.TypeMeta
	metav1.ObjectMeta
}

// DeepCopyObject returns a copy.
func (t *VirtualMachineTemplate) DeepCopyObject() runtime.Object {
	return &VirtualMachineTemplate{TypeMeta: t.TypeMeta, ObjectMeta: *t.ObjectMeta.DeepCopy()}
}
