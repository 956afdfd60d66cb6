// Package sampling makes a model's picture of a picture of any size and format, on a CPU.
//
//	Source ──fetch──> rows of the picture ──sample──> rows of the tensor ──convert──> tensor
//
// fetch asks the source for the bytes that a row depends on. sample reads those pixels that the result depends on, turns them into
// red, green and blue (or grey), and interpolates, first along a row and then between rows. convert normalises, and writes
// the tensor's type. No step knows another's parameters.
//
// The results differ from those of OpenCV's cvtColor and resize by at most 1/255 of the range, except for one value in 10,000 from
// YUV. OpenCV rounds to whole levels between its steps.
//
// # Colours in one word
//
// A pixel is a uint64 with three fields of 21 bits: red, green, blue. One multiplication weighs all three. A level of 0 to 255
// takes 8 bits, and the weights of a row have the other 13. Bayer samples of more than 8 bits have 3 bits more, and weights 3 fewer.
// Grey has one field, in the whole word. A sampled row has its colours apart, as float32, because rows are added per channel.
package sampling
