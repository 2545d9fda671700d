package main

import (
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"gpu-node-provider/cloud"
	"gpu-node-provider/cloud/simulated"
	"gpu-node-provider/provider/config"
)

// TestLaunchCodesOfTheFileAreThoseOfTheCloud: provider/config does not import package cloud,
// so both have the list, and so does the simulated cloud.
func TestLaunchCodesOfTheFileAreThoseOfTheCloud(t *testing.T) {
	codes := launchCodes(t)
	require.Contains(t, codes, string(cloud.InsufficientInstanceCapacity))
	require.ElementsMatch(t, codes, config.LaunchCodes())
	for _, code := range codes {
		pretend, err := simulated.New(simulated.Options{LaunchErrorCode: cloud.LaunchCode(code)})
		require.NoError(t, err)
		require.NoError(t, pretend.Close())
	}
}

// launchCodes returns the constants of type LaunchCode from the source of package cloud,
// since constants cannot be listed at run time.
func launchCodes(t *testing.T) (codes []string) {
	t.Helper()
	names, err := filepath.Glob("../../cloud/*.go")
	require.NoError(t, err)
	set := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		f, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, f)
	}
	// Constants do not depend on the imports, which stay unresolved.
	checker := types.Config{IgnoreFuncBodies: true, Error: func(error) {}}
	pkg, _ := checker.Check("cloud", set, files, nil)
	for _, name := range pkg.Scope().Names() {
		if c, ok := pkg.Scope().Lookup(name).(*types.Const); ok && types.TypeString(c.Type(), nil) == "cloud.LaunchCode" {
			codes = append(codes, constant.StringVal(c.Val()))
		}
	}
	return codes
}
