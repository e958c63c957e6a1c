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
