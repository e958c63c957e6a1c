package migrations

import (
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"
)

// ErrChanged: the file of a migration is not the one that was applied to the database, so the
// schema is another one than this program was written for.
var ErrChanged = errors.New("an applied migration was changed")

// The statements on the table of checksums, about the installation and about roles, which no query of the service uses.
//
//go:embed checksums/*.sql installation/*.sql roles/*.sql
var statements embed.FS

// checksum is what one file is, and what is known of it in the database.
type checksum struct {
	version  int64
	name     string
	sha256   string
	recorded string // '' for a version that was not recorded
	applied  bool
}

// checksumsOf are those of all files, by version, before anybody has looked into the database.
func checksumsOf(files fs.FS) ([]checksum, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, err
	}
	sums := make([]checksum, 0, len(names))
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, err
		}
		version, err := goose.NumericComponent(name)
		if err != nil {
			return nil, err
		}
		sum := sha256.Sum256(text)
		sums = append(sums, checksum{version: version, name: name, sha256: hex.EncodeToString(sum[:])})
	}
	slices.SortFunc(sums, func(a, b checksum) int { return cmp.Compare(a.version, b.version) })
	return sums, nil
}

// readChecksums returns the checksums of all files with what the database knows of them. A
// database without the table of checksums knows nothing.
func readChecksums(ctx context.Context, conn *pgx.Conn, files fs.FS) ([]checksum, error) {
	sums, err := checksumsOf(files)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	var kept bool
	if err := conn.QueryRow(ctx, statement("checksums/exists")).Scan(&kept); err != nil {
		return nil, fmt.Errorf("look for checksums: %w", err)
	}
	if !kept {
		return sums, nil
	}
	rows, err := conn.Query(ctx, statement("checksums/read"), versions(sums)) //nolint:rowserrcheck // ForEachRow does
	if err != nil {
		return nil, fmt.Errorf("read checksums: %w", err)
	}
	var read checksum
	_, err = pgx.ForEachRow(rows, []any{&read.version, &read.recorded, &read.applied}, func() error {
		i := slices.IndexFunc(sums, func(s checksum) bool { return s.version == read.version })
		sums[i].recorded, sums[i].applied = read.recorded, read.applied
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read checksums: %w", err)
	}
	return sums, nil
}

// refuseChanged is the check before and after a migration. The versions of a newer release,
// which this program has no files of, are not looked at.
func refuseChanged(sums []checksum) error {
	var changed []string
	for _, s := range sums {
		if s.changed() {
			changed = append(changed, s.name)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: in this program %s differs from what was applied to this database. "+
		"Run the program the database was migrated with, or put the file back as it was and the change into a new migration",
		ErrChanged, strings.Join(changed, ", "))
}

func (s *checksum) changed() bool { return s.applied && s.recorded != "" && s.recorded != s.sha256 }

// recordChecksums brings the table up to date after a migration, and refuses files that
// another replica applied in another form meanwhile. A role that may only read the table can
// serve as long as there is nothing to write.
func recordChecksums(ctx context.Context, conn *pgx.Conn, files fs.FS) error {
	sums, err := readChecksums(ctx, conn, files)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(sums, func(s checksum) bool { return s.applied && s.recorded == "" }) {
		digests := make([]string, len(sums))
		for i, s := range sums {
			digests[i] = s.sha256
		}
		if _, err := conn.Exec(ctx, statement("checksums/record"), versions(sums), digests); err != nil {
			return fmt.Errorf("record checksums: %w", err)
		}
		if sums, err = readChecksums(ctx, conn, files); err != nil {
			return err
		}
	}
	return refuseChanged(sums)
}

// forgetChecksums drops the records of versions that are not applied any more, whether
// pawl took them back or the goose command did.
func forgetChecksums(ctx context.Context, conn *pgx.Conn, sums []checksum) error {
	stale := slices.DeleteFunc(slices.Clone(sums), func(s checksum) bool { return s.applied || s.recorded == "" })
	if len(stale) == 0 {
		return nil
	}
	if _, err := conn.Exec(ctx, statement("checksums/forget"), versions(stale)); err != nil {
		return fmt.Errorf("forget checksums: %w", err)
	}
	return nil
}

func versions(sums []checksum) []int64 {
	out := make([]int64, len(sums))
	for i, s := range sums {
		out[i] = s.version
	}
	return out
}

func statement(name string) string {
	text, err := statements.ReadFile(name + ".sql")
	if err != nil {
		panic("migrations: " + err.Error()) // the build is broken
	}
	return string(text)
}
