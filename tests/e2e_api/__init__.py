"""Tests on a real kube-apiserver with etcd; see README.md of the folder above."""
