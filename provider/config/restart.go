package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"
)

// RestartNeeded returns the changes from c to next in fields that are read only at
// start-up, each as "path: old → new". A reload rejects next when there are any.
func (c *Config) RestartNeeded(next *Config) []string {
	before, after := c.startupValues(), next.startupValues()
	all := maps.Clone(before)
	maps.Copy(all, after)
	var changes []string
	for _, path := range sortedKeys(all) {
		if was, is := before[path], after[path]; was != is {
			changes = append(changes, fmt.Sprintf("%s: %s → %s", path, orUnset(was), orUnset(is)))
		}
	}
	return changes
}

func orUnset(value string) string {
	if value == "" {
		return "(unset)"
	}
	return value
}

// startupValues returns the values that are read only at start-up, by field path: sockets,
// clients, caches in Cluster Autoscaler and records in Redis depend on them.
func (c *Config) startupValues() map[string]string {
	values := map[string]string{}
	flatten("server", c.Server, values)
	flatten("kubernetes", c.Kubernetes, values)
	flatten("cloud", c.Cloud, values)
	flatten("redis", c.Redis, values)
	flatten("gpuLabel", c.GPULabel, values)
	flatten("checkpoint.podSelector", c.Checkpoint.PodSelector, values)
	flatten("checkpoint.keyPrefix", c.Checkpoint.KeyPrefix, values)
	return values
}

// flatten adds the leaves of a section, by field path. It goes through JSON, whose
// keys are those of the file.
func flatten(path string, section any, values map[string]string) {
	data, err := json.Marshal(section)
	if err != nil {
		panic("config: a section has no JSON form: " + err.Error()) // plain data always has one
	}
	var tree any
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&tree); err != nil {
		panic("config: JSON of a section cannot be read back: " + err.Error())
	}
	leaves(path, tree, values)
}

// userKeys are the paths of mappings with free keys.
var userKeys = map[string]bool{"cloud.simulated.capacity": true, "cloud.aws.discovery.tags": true}

func leaves(path string, tree any, values map[string]string) {
	switch t := tree.(type) {
	case nil:
	case map[string]any:
		if len(t) == 0 {
			values[path] = "{}" // its presence may enable a feature
		}
		for name, child := range t {
			at := member(path, name)
			if userKeys[path] {
				at = key(path, name)
			}
			leaves(at, child, values)
		}
	case []any:
		for i, child := range t {
			leaves(item(path, i), child, values)
		}
	case string:
		values[path] = strconv.Quote(t)
	default:
		values[path] = fmt.Sprint(t)
	}
}
