// Package page has the files of the gateway's page, and writes reports: the same page with finished
// runs inside, in one file that needs no server.
package page

import "embed"

// Files are the page as a gateway serves it: plain modules, nothing from elsewhere.
//
//go:embed *.html *.css *.js *.svg vendor
var Files embed.FS
