package db

// BehindPooler is behindPooler.
var BehindPooler = behindPooler
