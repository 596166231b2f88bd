# What Doxygen reads in place of a file: the same lines, with the marks that it needs. Our headers have plain comments, and our pages
# link to headings as GitHub names them. Line i of the output is line i of the file, so that warnings name the right one.
#
#   headers   A comment describes what stands below it, or what stands in front of it in its line. The first one is the file's.
#             A line "/* --- words --- */" is the heading of what follows.
#   pages     A page gets the name PAGE, a heading PAGE-HEADING. Links use them. Links to files that are no pages lead to the source tree.

# The name of a page: its file's without the end; of a README its folder's in front.
function page_name(path)
{
    sub(/\.md$/, "", path)
    sub(/\/README$/, "-readme", path)
    sub(/^.*\//, "", path)
    return path
}

# The name that GitHub gives a heading.
function slug(title)
{
    title = tolower(title)
    gsub(/[^a-z0-9_ -]/, "", title)
    gsub(/ /, "-", title)
    return title
}

# The folder of `here` and a path from there, as one path.
function joined(here, path)
{
    sub(/[^\/]*$/, "", here)
    while (sub(/^\.\.\//, "", path)) sub(/[^\/]*\/$/, "", here)
    return here path
}

# Where a link leads: [text](target).
function link_target(target, hash)
{
    if (target ~ /^[a-z]+:/) return target
    hash = index(target, "#")
    if (hash == 1) return "@ref " page_name(FILENAME) "-" substr(target, 2)
    if (hash) return "@ref " page_name(joined(FILENAME, substr(target, 1, hash - 1))) "-" substr(target, hash + 1)
    if (target ~ /\.md$/) return "@ref " page_name(joined(FILENAME, target))
    if (target ~ /\.png$/) return target
    if (target ~ /(^|\/)spec(_trees|_lab|_backend|_blocks|_draw)?\.h$/) {
        sub(/^.*\//, "", target)
        return "@ref " target
    }
    target = joined(FILENAME, target)
    gsub(/ /, "%20", target)
    return "file://" target
}

function with_links(text, out)
{
    while (match(text, /\]\([^)]*\)/)) {
        out = out substr(text, 1, RSTART + 1) link_target(substr(text, RSTART + 2, RLENGTH - 3)) ")"
        text = substr(text, RSTART + RLENGTH)
    }
    return out text
}

# Every other piece between two marks is code. One with a quote in it has two marks at each end.
function page_line(line, n, piece, i, mark, out)
{
    if (line ~ /^(    )?```/) fenced = !fenced
    if (fenced || line ~ /^    /) return line
    if (FNR == 1) return FILENAME == ENVIRON["PWD"] "/README.md" ? line : line " {#" page_name(FILENAME) "}"
    if (line ~ /^#+ /) return line " {#" page_name(FILENAME) "-" slug(substr(line, index(line, " ") + 1)) "}"
    n = split(line, piece, "`")
    for (i = 1; i <= n; i++) {
        mark = piece[i] ~ /'/ ? "``" : "`"
        out = out (i % 2 ? with_links(piece[i]) : mark piece[i] (i < n ? mark : ""))
    }
    return out
}

# Words of a comment: no commands for Doxygen. Headings are bold, each "Errors:" or "Label   text" begins a paragraph, and a line that is
# set in, a formula or a row of a table, stays a line. Deeper ones are code.
function comment_words(line)
{
    gsub(/[@\\]/, "\\\\&", line)
    if (line ~ /^ *\* +(-|[0-9]+\.) /) listed = 1
    else if (line ~ /^ *\*    ?[^ ]/ && !listed) set_in = sub(/\*   /, "* <br>\\&emsp;", line)
    else if (line !~ /^ *\*   /) {
        if (set_in) sub(/\* /, "* <p>", line)
        listed = set_in = 0
    }
    if (match(line, /^ *\* [A-Z][A-Z ]+$/)) sub(/[A-Z].*/, "<b>&</b>", line)
    if (match(line, /^ *\* [A-Za-z]+( [a-z]+)*   *([A-Z]|   )/)) {
        sub(/[A-Za-z]+( [a-z]+)*/, "<p><b>&</b>", line)
        sub(/<\/b>  +/, ":</b> ", line)
    }
    if (!listed) gsub(/ Errors( of [a-z]+)?: /, "<p><b>&</b>", line)
    return line
}

function header_line(line, at, front, mark)
{
    if (inside) {
        inside = index(line, "*/") == 0
        return comment_words(line)
    }
    if (line ~ /^\/\* -+.* -+ \*\/$/) {
        gsub(/^\/\* -+ | -+ \*\/$/, "", line)
        mark = (heading ? "/** @} */ " : "") "/** @name " line " */ /** @{ */"
        heading = 1
        return mark
    }
    at = index(line, "/*")
    if (!at || line ~ /^#(if|elif|else|endif)/) return line
    inside = index(line, "*/") == 0
    front = substr(line, 1, at - 1)
    line = substr(line, at + 2)
    mark = front ~ /[^ ]/ ? "/**<" : "/**"
    if (!described) {
        mark = "/** @file"
        sub(/ - /, " ", line)
    }
    described = 1
    return front mark comment_words(line)
}

{ print FILENAME ~ /\.md$/ ? page_line($0) : header_line($0) }
END { if (heading) print "/** @} */" }
