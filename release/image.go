package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

type platformImage struct {
	platform
	image v1.Image
}

// nobody is the user of the image, the same as in Google's distroless images.
const nobody = "65532:65532"

// image is the program alone, with the certificates that it trusts. It writes no file, so the root may be read-only.
func (r *release) image(p platform, program string) (platformImage, error) {
	binary, err := os.ReadFile(program)
	if err != nil {
		return platformImage{}, err
	}
	files := []file{
		{"etc/ssl/certs/ca-certificates.crt", 0o644, certificates()},
		{"usr/bin/pawl", 0o755, binary},
	}
	for _, f := range r.documents[:2] {
		files = append(files, file{"usr/share/doc/pawl/" + f.name, f.mode, f.data})
	}
	var content bytes.Buffer
	if err := writeTar(&content, r.time, files); err != nil {
		return platformImage{}, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(9))
	if err != nil {
		return platformImage{}, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{
		Created: v1.Time{Time: r.time}, CreatedBy: "pawl release", Comment: "pawl " + number,
	}})
	if err != nil {
		return platformImage{}, err
	}
	image, err = mutate.ConfigFile(image, r.imageConfig(p, image))
	return platformImage{p, image}, err
}

func (r *release) imageConfig(p platform, image v1.Image) *v1.ConfigFile {
	was, err := image.ConfigFile()
	if err != nil {
		panic(err) // it is in memory
	}
	config := was.DeepCopy()
	config.Created, config.OS, config.Architecture = v1.Time{Time: r.time}, p.os, p.arch
	config.Config = v1.Config{
		User: nobody, WorkingDir: "/", Entrypoint: []string{"/usr/bin/pawl"},
		Env:          []string{"PORT=3000"}, // all interfaces
		ExposedPorts: map[string]struct{}{"3000/tcp": {}},
		StopSignal:   "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title":    "pawl",
			"org.opencontainers.image.version":  number,
			"org.opencontainers.image.revision": r.commit,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return config
}

// certificates are Mozilla's, as the Go project publishes them: those of the machine would differ from machine to machine.
func certificates() []byte {
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil { // a PEM file can't say for what others are trusted
			_ = pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})
		}
	}
	return text.Bytes()
}

// imageLayout writes the image of all platforms as an OCI layout in a tar file, for docker load, podman load and skopeo.
func (r *release) imageLayout(images []platformImage) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image.image, Descriptor: v1.Descriptor{
			Platform: &v1.Platform{OS: image.os, Architecture: image.arch},
		}})
	}
	dir := filepath.Join(r.work, "image")
	made, err := layout.Write(dir, empty.Index)
	if err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	err = made.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": number, "io.containerd.image.name": "pawl:" + number,
	}))
	if err != nil {
		return fmt.Errorf("write layout: %w", err)
	}
	files, err := filesIn(dir, "")
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := writeTar(&packed, r.time, files); err != nil {
		return err
	}
	return os.WriteFile(r.name("pawl_%s_image.tar", number), packed.Bytes(), 0o644)
}

// chart packs the Helm chart.
func (r *release) chart() error {
	files, err := filesIn(filepath.Join(r.source, "release/chart"), "pawl/")
	if err != nil {
		return err
	}
	return writeTarGz(r.name("pawl-chart-%s.tgz", number), r.time, files)
}

// filesIn returns the files of a folder, by name.
func filesIn(dir, prefix string) (all []file, err error) {
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		all = append(all, file{prefix + name, 0o644, content})
		return err
	})
	return all, err
}
