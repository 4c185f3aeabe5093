// Stands for a module that virtctl requires and these commands do not use.
module kubevirt.io/virt-template-engine

go 1.26.0
