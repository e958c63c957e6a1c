package migrations

import (
	"context"
	"io/fs"
)

// UpOf is Up with the files of another build.
func UpOf(ctx context.Context, url string, files fs.FS) error {
	_, err := up(ctx, url, files)
	return err
}

// DownOf is Down with the files of another build, allowed whatever goes.
func DownOf(ctx context.Context, url string, files fs.FS) error {
	return down(ctx, url, files, func(Rollback) error { return nil })
}
