"""What a cluster needs to run a project: packages and project as archives, the command of spark-submit, a
manifest for Kubernetes."""
