// katalyst-types reads a CustomNodeResource as JSON from standard input with Katalyst's own types, and writes
// what they make of it to standard output. A field that the types do not have ends it with an error.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/kubewharf/katalyst-api/pkg/apis/node/v1alpha1"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	var read v1alpha1.CustomNodeResource
	if err := decoder.Decode(&read); err != nil {
		return err
	}
	if _, err := decoder.Token(); err != io.EOF {
		return fmt.Errorf("something follows the object: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(&read)
}
