// Package pages checks the documentation: links and anchors, the node group files in it, and that fields, defaults,
// metrics, Events, commands and flags agree with the code.
//
// With the build tag pages it also runs every block that is fenced with sh, go or python, as written, in a copy of the
// tree. That needs kubectl, redis-server, redis-cli and redis-py: `make pages` provides them.
package pages
