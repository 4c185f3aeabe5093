// Package core has what an informer that virtctl never starts refers to.
package core

const (
	GroupName            = "template.kubevirt.io"
	PluralResourceName   = "virtualmachinetemplates"
	SingularResourceName = "virtualmachinetemplate"
)
