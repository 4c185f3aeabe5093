// Stands for a module that virtctl requires and these commands do not use.
module libguestfs.org/libnbd

go 1.26.0
