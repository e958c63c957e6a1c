package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"

	"github.com/CycloneDX/cyclonedx-go"
	"github.com/CycloneDX/cyclonedx-gomod/pkg/generate/bin"
	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
	"github.com/rs/zerolog"
)

const maintainer = "The Pawl authors <pawl@localhost>"

// packages writes the packages of a platform for Debian and for RPM. They need no scripts: systemd makes the user when the
// service starts.
func (r *release) packages(p platform, program string) error {
	contents, err := r.contents(program)
	if err != nil {
		return err
	}
	info := &nfpm.Info{
		Name: "pawl", Arch: p.arch, Platform: "linux", Version: number, Release: "1", Section: "net", Priority: "optional",
		Maintainer: maintainer, Vendor: "The Pawl authors", License: "Apache-2.0", MTime: r.time,
		Description: "Retry-safe order service on PostgreSQL.\nPawl charges, reserves and confirms each order exactly once, whatever fails.",
		Overridables: nfpm.Overridables{
			Contents:   contents,
			Recommends: []string{"ca-certificates"},
			Suggests:   []string{"postgresql"},
			RPM:        nfpm.RPM{BuildHost: "localhost", Compression: "gzip:9", Summary: "Retry-safe order service on PostgreSQL"},
			Deb:        nfpm.Deb{Compression: "gzip"},
		},
	}
	for _, packager := range []nfpm.Packager{deb.Default, rpm.DefaultRPM} {
		one := nfpm.WithDefaults(info)
		if err := nfpm.PrepareForPackager(one, packager.(interface{ ConventionalExtension() string }).ConventionalExtension()[1:]); err != nil {
			return err
		}
		var packed bytes.Buffer
		if err := packager.Package(one, &packed); err != nil {
			return err
		}
		if err := os.WriteFile(r.name("%s", packager.ConventionalFileName(one)), packed.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// contents are the files of a package.
func (r *release) contents(program string) (all files.Contents, err error) {
	add := func(source, destination, kind string, mode os.FileMode) {
		all = append(all, &files.Content{Source: source, Destination: destination, Type: kind, FileInfo: &files.ContentFileInfo{
			Owner: "root", Group: "root", Mode: mode, MTime: r.time,
		}})
	}
	own := filepath.Join(r.source, "release/files")
	add(program, "/usr/bin/pawl", files.TypeFile, 0o755)
	add(filepath.Join(own, "pawl.service"), "/usr/lib/systemd/system/pawl.service", files.TypeFile, 0o644)
	add(filepath.Join(own, "pawl.env"), "/etc/pawl/pawl.env", files.TypeConfigNoReplace, 0o600)
	places := map[string]string{
		"LICENSE": "/usr/share/doc/pawl/copyright", "NOTICE": "/usr/share/doc/pawl/NOTICE",
		"completions/pawl.bash": "/usr/share/bash-completion/completions/pawl",
		"completions/_pawl":     "/usr/share/zsh/vendor-completions/_pawl",
		"completions/pawl.fish": "/usr/share/fish/vendor_completions.d/pawl.fish",
	}
	for _, f := range r.documents {
		destination, data := places[f.name], f.data
		if page, ok := strings.CutPrefix(f.name, "man1/"); ok {
			destination = "/usr/share/man/man1/" + page + ".gz"
			if data, err = compressed(data); err != nil {
				return nil, err
			}
		}
		staged := filepath.Join(r.work, strings.ReplaceAll(destination, "/", "_"))
		if err := os.WriteFile(staged, data, 0o644); err != nil {
			return nil, err
		}
		add(staged, destination, files.TypeFile, f.mode)
	}
	return all, nil
}

func compressed(data []byte) ([]byte, error) {
	var packed bytes.Buffer
	compressor, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := compressor.Write(data); err != nil {
		return nil, err
	}
	err = compressor.Close()
	return packed.Bytes(), err
}

// billOfMaterials writes what is in a program, in CycloneDX.
func (r *release) billOfMaterials(p platform, program string) error {
	generator, err := bin.NewGenerator(program, bin.WithIncludeStdlib(true), bin.WithLogger(zerolog.Nop()), bin.WithVersionOverride("v"+number))
	if err != nil {
		return err
	}
	bill, err := generator.Generate()
	if err != nil {
		return err
	}
	bill.Metadata.Timestamp = r.time.Format("2006-01-02T15:04:05Z")
	bill.Metadata.Component.Licenses = &cyclonedx.Licenses{{License: &cyclonedx.License{ID: "Apache-2.0"}}}
	var text bytes.Buffer
	if err := cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bill); err != nil {
		return err
	}
	return os.WriteFile(r.name("pawl_%s_%s_%s.cdx.json", number, p.os, p.arch), text.Bytes(), 0o644)
}
