// Stands for a module that virtctl requires and these commands do not use.
module kubevirt.io/virt-template-client-go

go 1.26.0

require k8s.io/client-go v0.34.2
