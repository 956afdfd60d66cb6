// Package page has the files of the gateway's page.
package page

import "embed"

// Files are the page as a gateway serves it: plain modules, nothing from elsewhere.
//
//go:embed *.html *.css *.js *.svg vendor
var Files embed.FS
