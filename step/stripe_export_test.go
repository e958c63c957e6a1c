package step

// NewStripe is newStripe for the tests outside the package.
var NewStripe = newStripe
