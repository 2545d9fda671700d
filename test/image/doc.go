// Package image tests what `make image` has built: the files and the
// configuration of the image, and its programs in a root that holds those files
// and what a Pod mounts, and nothing else of the machine.
package image
