//go:build image

package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const (
	archiveFile = "../../.cache/image/gpu-node-provider.tar"
	buildIt     = "run `make image`"
)

// imageConfig is what the tests read of an image's configuration.
type imageConfig struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		User         string
		Entrypoint   []string
		Cmd          []string
		Env          []string
		ExposedPorts map[string]struct{}
		Labels       map[string]string
	} `json:"config"`
}

// builtImage is an image of an OCI archive.
type builtImage struct {
	config imageConfig
	files  []file // in the order of the layers
}

// file is one of a layer.
type file struct {
	*tar.Header
	data []byte
}

// readImage reads the archive that `make image` has written.
var readImage = sync.OnceValues(func() (*builtImage, error) {
	blobs, err := readArchive(archiveFile)
	if err != nil {
		return nil, fmt.Errorf("%w; %s", err, buildIt)
	}
	var index struct{ Manifests []struct{ Digest string } }
	if err := json.Unmarshal(blobs["index.json"], &index); err != nil {
		return nil, fmt.Errorf("%s: index.json: %w", archiveFile, err)
	}
	if len(index.Manifests) != 1 {
		return nil, fmt.Errorf("%s: index.json names %d images instead of one; %s", archiveFile, len(index.Manifests), buildIt)
	}
	blob := func(digest string) []byte { return blobs["blobs/"+strings.Replace(digest, ":", "/", 1)] }
	var manifest struct {
		Config struct{ Digest string }
		Layers []struct{ Digest string }
	}
	if err := json.Unmarshal(blob(index.Manifests[0].Digest), &manifest); err != nil {
		return nil, fmt.Errorf("%s: manifest: %w", archiveFile, err)
	}
	image := &builtImage{}
	if err := json.Unmarshal(blob(manifest.Config.Digest), &image.config); err != nil {
		return nil, fmt.Errorf("%s: configuration: %w", archiveFile, err)
	}
	for _, layer := range manifest.Layers {
		files, err := readLayer(blob(layer.Digest))
		if err != nil {
			return nil, fmt.Errorf("%s: layer %s: %w", archiveFile, layer.Digest, err)
		}
		image.files = append(image.files, files...)
	}
	return image, nil
})

func readArchive(path string) (map[string][]byte, error) {
	archive, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer archive.Close() //nolint:errcheck // nothing was written
	files, err := readTar(archive)
	blobs := map[string][]byte{}
	for _, f := range files {
		blobs[filepath.Clean(f.Name)] = f.data
	}
	return blobs, err
}

func readLayer(compressed []byte) ([]file, error) {
	plain, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, err
	}
	return readTar(plain)
}

func readTar(from io.Reader) ([]file, error) {
	var files []file
	for reader := tar.NewReader(from); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(reader)
		if err != nil {
			return nil, err
		}
		files = append(files, file{header, data})
	}
}

// unpack writes the image's files into an empty folder, with their modes. Their owner
// is the user of the test: root, as in the image, where the test runs as root.
func (i *builtImage) unpack(folder string) error {
	for _, f := range i.files {
		path, mode := filepath.Join(folder, filepath.Clean("/"+f.Name)), f.FileInfo().Mode().Perm()
		var err error
		switch f.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, mode)
		case tar.TypeReg:
			err = os.WriteFile(path, f.data, mode)
		default:
			err = fmt.Errorf("%s is neither a folder nor a file", f.Name)
		}
		if err != nil {
			return err
		}
		if err := os.Chmod(path, mode); err != nil { // whatever the umask
			return err
		}
	}
	return nil
}
