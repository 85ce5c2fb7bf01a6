package breakerconfig

import (
	"errors"
	"strings"

	"go.yaml.in/yaml/v4"
)

func parseYAML(data []byte) (*node, *syntaxError) {
	var root yaml.Node
	err := yaml.Load(data, &root)
	var wrong *yaml.LoadError
	switch {
	case err != nil && strings.Contains(err.Error(), "no documents in stream"):
		return &node{line: 1}, nil
	case errors.As(err, &wrong):
		return nil, syntaxErrorf(wrong.Mark.Line, "%s", strings.TrimPrefix(wrong.Message, "yaml: "))
	case err != nil:
		return nil, syntaxErrorf(0, "%v", err)
	case root.Kind == 0:
		return &node{line: 1}, nil
	}
	return yamlNode(&root, 0)
}

// yamlNode turns a node of YAML into one of ours. An alias stands for what it
// names; one that names what it lies in ends at maxDepth.
func yamlNode(y *yaml.Node, depth int) (*node, *syntaxError) {
	if depth > maxDepth {
		return nil, syntaxErrorf(y.Line, "%s", errTooDeep)
	}
	switch y.Kind {
	case yaml.DocumentNode:
		return yamlNode(y.Content[0], depth)
	case yaml.AliasNode:
		n, err := yamlNode(y.Alias, depth+1)
		if err == nil {
			n.line = y.Line
		}
		return n, err
	case yaml.ScalarNode:
		return &node{line: y.Line, kind: yamlKind(y.ShortTag()), text: y.Value}, nil
	case yaml.SequenceNode:
		return &node{line: y.Line, kind: listKind}, nil
	}
	n := &node{line: y.Line, kind: tableKind}
	for i := 0; i+1 < len(y.Content); i += 2 {
		name := y.Content[i]
		if name.Kind == yaml.AliasNode {
			name = name.Alias
		}
		if name.Kind != yaml.ScalarNode {
			return nil, syntaxErrorf(y.Content[i].Line, "the name of a field must be a text")
		}
		value, err := yamlNode(y.Content[i+1], depth+1)
		if err != nil {
			return nil, err
		}
		n.fields = append(n.fields, field{name.Value, y.Content[i].Line, value})
	}
	return n, nil
}

func yamlKind(tag string) kind {
	switch tag {
	case "!!null":
		return nullKind
	case "!!str":
		return textKind
	case "!!int", "!!float":
		return numberKind
	case "!!bool":
		return boolKind
	}
	return otherKind
}
