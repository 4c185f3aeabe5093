module drydock.dev/hack/kubernetes/pause

go 1.26.0
