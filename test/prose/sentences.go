package main

import (
	"path"
	"regexp"
	"strings"
	"unicode"
)

// From a file to its sentences:
//
//  1. A reader by the file's kind returns its lines of prose: comments, or Markdown.
//  2. paragraphs joins them, and leaves out code, tables and drawings.
//  3. sentences splits paragraphs, and replaces code and links by one word each.

// line is one line of prose without its comment marks.
type line struct {
	number int
	text   string
	// first is set if the line does not continue the comment above it.
	first bool
	// declares is the identifier that the comment below documents; only on a first line.
	declares string
}

// sentence is one sentence of a comment or a page.
type sentence struct {
	path  string
	line  int
	text  string
	words int
}

// reader returns the function that finds the prose in a file, or nil for other files.
func reader(file string) func(text string) []line {
	switch path.Ext(file) {
	case ".go":
		return func(text string) []line { return slashComments(text, true) }
	case ".c", ".h", ".cu":
		return func(text string) []line { return slashComments(text, false) }
	case ".py", ".sh", ".yaml":
		return hashComments
	case ".md":
		return markdown
	}
	if path.Base(file) == "Makefile" {
		return hashComments
	}
	return nil
}

// slashComments finds the comments of Go and C. In Go a backquote begins a raw string.
func slashComments(text string, raw bool) []line {
	var found []line
	number := 1
	last := -1      // the last line with a comment that had its line to itself
	lineBegins := 0 // offset of the current line
	alone := func(at int) bool { return strings.TrimSpace(text[lineBegins:at]) == "" }

	for i := 0; i < len(text); {
		rest := text[i:]
		switch {
		case rest[0] == '\n':
			number++
			i++
			lineBegins = i

		case strings.HasPrefix(rest, "//"):
			end := i + lengthUntil(rest, "\n")
			comment := text[i+2 : end]
			if !directive(comment) {
				joined := alone(i) && last == number-1
				found = append(found, line{number: number, text: strings.TrimPrefix(comment, " "), first: !joined})
			}
			if alone(i) {
				last = number
			}
			i = end

		case strings.HasPrefix(rest, "/*"):
			end := i + lengthUntil(rest, "*/")
			for j, l := range strings.Split(text[i+2:end], "\n") {
				l = strings.TrimPrefix(strings.TrimLeft(l, " \t"), "*")
				found = append(found, line{number: number + j, text: strings.TrimPrefix(l, " "), first: j == 0})
			}
			number += strings.Count(text[i:end], "\n")
			i = min(end+2, len(text))

		case rest[0] == '"' || rest[0] == '\'':
			i += quoted(rest)

		case raw && rest[0] == '`':
			end := i + 1 + lengthUntil(rest[1:], "`")
			number += strings.Count(text[i:end], "\n")
			i = min(end+1, len(text))

		default:
			i++
		}
	}
	if raw {
		nameDeclarations(found, strings.Split(text, "\n"))
	}
	return found
}

// lengthUntil returns the offset of end in text, or the length of text.
func lengthUntil(text, end string) int {
	if i := strings.Index(text, end); i >= 0 {
		return i
	}
	return len(text)
}

// quoted returns the length of the string or character that text begins with.
func quoted(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case text[0]:
			return i + 1
		case '\n':
			return i
		}
	}
	return len(text)
}

var directivePattern = regexp.MustCompile(`^(go:|export |line |nolint|lint:|#| \+[a-z]+)`)

func directive(comment string) bool { return directivePattern.MatchString(comment) }

var declaration = regexp.MustCompile(`^\s*(?:(?:func(?: \([^)]*\))?|type|var|const) )?(\w+)`)

// nameDeclarations notes the identifier that each Go comment documents, so that a field What
// may begin its comment with its name.
func nameDeclarations(lines []line, source []string) {
	for i := range lines {
		if !lines[i].first {
			continue
		}
		end := i
		for end+1 < len(lines) && !lines[end+1].first {
			end++
		}
		below := lines[end].number
		if below >= len(source) {
			continue
		}

		if strings.HasPrefix(source[below], `import "C"`) {
			for j := i; j <= end; j++ {
				lines[j].text = "" // the comment is C
			}
		} else if m := declaration.FindStringSubmatch(source[below]); m != nil {
			lines[i].declares = m[1]
		}
	}
}

// hashComments finds comments that begin with # and have their line to themselves.
func hashComments(text string) []line {
	var found []line
	last := -1
	for i, l := range strings.Split(text, "\n") {
		l = strings.TrimLeft(l, " \t")
		if !strings.HasPrefix(l, "#") || strings.HasPrefix(l, "#!") {
			continue
		}
		l = strings.TrimPrefix(strings.TrimLeft(l, "#"), " ")
		found = append(found, line{number: i + 1, text: l, first: last != i})
		last = i + 1
	}
	return found
}

// markdown returns a page without its listings, headings, tables and comments. Indented text
// is not a listing: it may continue an item of a list.
func markdown(text string) []line {
	var found []line
	fence, comment := "", false
	for i, l := range strings.Split(text, "\n") {
		l = strings.TrimLeft(strings.TrimLeft(l, " \t"), "> ")
		switch {
		case fence != "":
			if strings.HasPrefix(l, fence) {
				fence = ""
			}
			l = ""
		case strings.HasPrefix(l, "```"), strings.HasPrefix(l, "~~~"):
			fence, l = l[:3], ""
		case comment || strings.HasPrefix(l, "<!--"):
			comment = !strings.Contains(l, "-->")
			l = ""
		case strings.HasPrefix(l, "#"), strings.HasPrefix(l, "|"), strings.HasPrefix(l, "!["):
			l = ""
		}
		found = append(found, line{number: i + 1, text: l})
	}
	return found
}

// paragraph is text that one or more lines hold.
type paragraph struct {
	text     string
	declares string
	// begins[i] is the offset in text of line number first+i.
	begins []int
	first  int
}

func (p *paragraph) add(text string) {
	if p.text != "" {
		p.text += " "
	}
	p.begins = append(p.begins, len(p.text))
	p.text += strings.TrimSpace(text)
}

// lineAt returns the number of the line that has the text at an offset.
func (p *paragraph) lineAt(offset int) int {
	i := len(p.begins) - 1
	for i > 0 && p.begins[i] > offset {
		i--
	}
	return p.first + i
}

var (
	item     = regexp.MustCompile(`^\s*(?:[-*•]|\d+[.)])\s+`)
	indented = regexp.MustCompile(`^(?:\t|  )`)
	drawing  = regexp.MustCompile(`[│┌┐└┘├┤─►▲▼]|──|-->|<--|={4}|-{4}`)
)

func paragraphs(lines []line) []paragraph {
	var found []paragraph
	var current paragraph
	inItem := false
	end := func() {
		if current.text != "" {
			found = append(found, current)
		}
		current = paragraph{}
	}
	for _, l := range lines {
		blank := strings.TrimSpace(l.text) == ""
		if l.first || blank {
			inItem = false
		}
		if l.first || blank || drawing.MatchString(l.text) {
			end()
		}
		if blank || drawing.MatchString(l.text) {
			continue
		}

		if mark := item.FindString(l.text); mark != "" {
			end()
			inItem = true
			l.text = l.text[len(mark):]
		} else if indented.MatchString(l.text) && !inItem {
			end()
			continue // a listing
		} else if !indented.MatchString(l.text) {
			inItem = false
		}
		if current.text == "" {
			current.first, current.declares = l.number, l.declares
		}
		current.add(l.text)
	}
	end()
	return found
}

var (
	sentenceEnd  = regexp.MustCompile(`[.!?]["')\]*_]*\s+`)
	abbreviation = regexp.MustCompile(`(?:^|[\s(])(?:e\.g|i\.e|cf|vs|Fig|No|etc|approx|resp|al|[A-Z])\.$`)

	code     = regexp.MustCompile("``[^`]+``|`[^`]+`")
	link     = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	address  = regexp.MustCompile(`https?://\S+`)
	emphasis = regexp.MustCompile(`\*\*?|\b_|_\b`)
)

// sentences splits the prose of a file.
func sentences(file string, lines []line) []sentence {
	var found []sentence
	for _, p := range paragraphs(lines) {
		at := 0
		for at < len(p.text) {
			end := at + sentenceLength(p.text[at:])
			text := p.text[at:end]
			if at == 0 && p.declares != "" && strings.HasPrefix(text, p.declares+" ") {
				text = "`" + p.declares + "`" + text[len(p.declares):]
			}
			text, words := plain(text)
			if words > 0 {
				found = append(found, sentence{path: file, line: p.lineAt(at), text: text, words: words})
			}
			at = end
		}
	}
	return found
}

// sentenceLength returns the length of the first sentence of text, with the space behind it.
func sentenceLength(text string) int {
	for _, m := range sentenceEnd.FindAllStringIndex(text, -1) {
		if !abbreviation.MatchString(text[:m[0]+1]) {
			return m[1]
		}
	}
	return len(text)
}

// plain returns a sentence with one x for each piece of code, and its number of words.
func plain(text string) (string, int) {
	text = code.ReplaceAllString(text, "x")
	text = link.ReplaceAllString(text, "$1")
	text = address.ReplaceAllString(text, "x")
	text = emphasis.ReplaceAllString(text, "")

	words := 0
	for word := range strings.FieldsSeq(text) {
		if strings.ContainsFunc(word, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			words++
		}
	}
	return strings.TrimSpace(text), words
}
