package nodeagent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// environmentOf is the environment that the Pod's spec asks for, the downward
// API included.
func environmentOf(pod *corev1.Pod) (map[string]string, error) {
	environment := map[string]string{}
	for _, e := range pod.Spec.Containers[0].Env {
		switch {
		case e.ValueFrom == nil:
			environment[e.Name] = replacer(environment).Replace(e.Value)
		case e.ValueFrom.FieldRef != nil:
			value, err := field(pod, e.ValueFrom.FieldRef.FieldPath)
			if err != nil {
				return nil, fmt.Errorf("environment variable %s: %w", e.Name, err)
			}
			environment[e.Name] = value
		case e.ValueFrom.SecretKeyRef != nil && e.ValueFrom.SecretKeyRef.Optional != nil && *e.ValueFrom.SecretKeyRef.Optional:
			// No Secrets are read here, so an optional one is one that is missing.
		default:
			return nil, fmt.Errorf("environment variable %s: only values and fields are supported here", e.Name)
		}
	}
	return environment, nil
}

func field(pod *corev1.Pod, path string) (string, error) {
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	default:
		return "", fmt.Errorf("field %s is not supported here", path)
	}
}

// expand puts $(NAME) in a command line, as Kubernetes does.
func expand(command []string, environment map[string]string) {
	for n := range command {
		command[n] = replacer(environment).Replace(command[n])
	}
}

func replacer(environment map[string]string) *strings.Replacer {
	var pairs []string
	for name, value := range environment {
		pairs = append(pairs, "$("+name+")", value)
	}
	return strings.NewReplacer(pairs...)
}

func list(environment map[string]string) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(environment)) {
		all = append(all, name+"="+environment[name])
	}
	return all
}
