// Stands for a module that virtctl requires and these commands do not use.
module kubevirt.io/virt-template-api

go 1.26.0

require k8s.io/apimachinery v0.34.2
