module pawl/clienttest

go 1.26.0

require pawl v0.0.0

require github.com/google/uuid v1.6.0 // indirect

replace pawl => ..
