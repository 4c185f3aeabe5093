"""Records the fields of KubeVirt's v1 API, as data for admission."""
