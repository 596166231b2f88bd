# Turns a page into C: the arrays NAME_head and NAME_tail, which are what stands before and after its one placeholder.
#   cmake -D PAGE=page.html -D OUT=page.c -D NAME=name -D HEADER=declares.h -P embed_page.cmake
set(placeholder "@DATA@")
file(READ ${PAGE} text HEX)
string(HEX ${placeholder} mark)
string(FIND "${text}" ${mark} at)
string(FIND "${text}" ${mark} last REVERSE)
math(EXPR odd "${at} % 2") # "@" is 40: a match between two bytes would be one by chance
if(at EQUAL -1 OR odd OR NOT at EQUAL last)
  message(FATAL_ERROR "${PAGE} needs ${placeholder} exactly once")
endif()
string(LENGTH ${mark} length)
math(EXPR after "${at} + ${length}")
string(SUBSTRING "${text}" 0 ${at} head)
string(SUBSTRING "${text}" ${after} -1 tail)

set(code "/* Made from ${PAGE}: change that. */\n#include \"${HEADER}\"\n")
foreach(part head tail)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${${part}}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n"
    bytes "${bytes}")
  string(APPEND code "\nconst unsigned char ${NAME}_${part}[] = {\n${bytes}\n};\n"
    "const size_t ${NAME}_${part}_bytes = sizeof ${NAME}_${part};\n")
endforeach()
file(WRITE ${OUT} "${code}")
