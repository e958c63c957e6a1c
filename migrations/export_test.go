package migrations

// The commands with the files of another build.
var (
	UpOf     = up
	DownOf   = down
	StatusOf = status
)
