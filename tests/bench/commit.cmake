# Writes OUT, a header with the commit that is built ("-dirty" behind it where the tree differs), when it has changed.
cmake_minimum_required(VERSION 3.21)
execute_process(COMMAND git describe --always --dirty --exclude=* WORKING_DIRECTORY ${SOURCE}
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT commit)
  set(commit unknown)
endif()
file(CONFIGURE OUTPUT ${OUT} @ONLY CONTENT "#define BENCH_COMMIT \"@commit@\"\n")
