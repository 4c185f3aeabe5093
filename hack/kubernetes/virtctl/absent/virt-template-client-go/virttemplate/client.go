// Package virttemplate has what an informer that virtctl never starts refers to.
package virttemplate

import (
	"errors"

	"k8s.io/client-go/rest"
)

// Clientset has no client.
type Clientset struct{}

// NewForConfig fails: there is no client.
func NewForConfig(*rest.Config) (*Clientset, error) {
	return nil, errors.New("templates are not supported")
}

// TemplateV1beta1 returns itself.
func (c *Clientset) TemplateV1beta1() *Clientset { return c }

// RESTClient returns none.
func (c *Clientset) RESTClient() rest.Interface { return nil }
