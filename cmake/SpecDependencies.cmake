# Finds what the library stands on. Sets
#   spec_libraries    what libspec links
#   spec_packages     the pkg-config names among them
#   spec_debian_packages  the same as Debian names them
#   SPEC_WITH_CUDA    ON where the CUDA backend is built; then the language CUDA is enabled. Else cuda_reason says why not
#   SPEC_WITH_TESTS   ON where the tests are built; else tests_reason says why not

include(CheckCSourceCompiles)
find_package(PkgConfig QUIET)
if(NOT PkgConfig_FOUND)
  message(FATAL_ERROR "pkg-config was not found. Install it (Debian, Ubuntu: apt-get install pkg-config).")
endif()
set(THREADS_PREFER_PTHREAD_FLAG OFF)
find_package(Threads REQUIRED)

set(spec_libraries Threads::Threads ${CMAKE_DL_LIBS} m)
set(spec_packages)
set(spec_debian_packages)

# spec_require(<pkg-config name> <Debian package> <how to do without>)
macro(spec_require package debian without)
  string(MAKE_C_IDENTIFIER ${package} id)
  pkg_check_modules(${id} QUIET IMPORTED_TARGET ${package})
  if(NOT ${id}_FOUND)
    message(FATAL_ERROR "${package} was not found. Install it (Debian, Ubuntu: apt-get install ${debian})${without}.")
  endif()
  list(APPEND spec_libraries PkgConfig::${id})
  list(APPEND spec_packages ${package})
  list(APPEND spec_debian_packages ${debian})
endmacro()

spec_require(jansson libjansson-dev "")
if(SPEC_TOKENIZER)
  spec_require(libpcre2-8 libpcre2-dev ", or configure with -DSPEC_TOKENIZER=OFF for token ids only")
  spec_require(libutf8proc libutf8proc-dev ", or configure with -DSPEC_TOKENIZER=OFF for token ids only")
endif()

# Sets an option of three values to AUTO, ON or OFF, however CMake lets them be written; another value is an error.
function(spec_three_values option)
  string(TOUPPER "${${option}}" value)
  if(value MATCHES "^(1|YES|TRUE|Y)$")
    set(value ON)
  elseif(value MATCHES "^(0|NO|FALSE|N|)$")
    set(value OFF)
  elseif(NOT value MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "${option}=${${option}}, need AUTO, ON or OFF")
  endif()
  set(${option} ${value} PARENT_SCOPE)
endfunction()

spec_three_values(SPEC_CUDA)
spec_three_values(SPEC_TESTS)

# ------------------------------------------------------------------------- instruction sets ---

# Sets `out` (of the cache) to whether the compiler knows flags, a list, and a statement of immintrin.h.
function(spec_compiles out flags statement)
  list(JOIN flags " " CMAKE_REQUIRED_FLAGS)
  set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY) # nothing is linked or run
  check_c_source_compiles("#include <immintrin.h>\nvoid probe(void);\nvoid probe(void) { ${statement} }" ${out})
endfunction()

# ------------------------------------------------------------------------------------------ CUDA ---

# Sets `out` to the reason why the CUDA backend cannot be built, or to "".
function(spec_find_cuda out)
  set(${out} "" PARENT_SCOPE)
  find_program(SPEC_NVCC nvcc HINTS ENV CUDA_PATH ENV CUDA_HOME /usr/local/cuda PATH_SUFFIXES bin)
  mark_as_advanced(SPEC_NVCC)
  if(CMAKE_CUDA_COMPILER)
    set(nvcc ${CMAKE_CUDA_COMPILER})
  elseif(DEFINED ENV{CUDACXX})
    set(nvcc $ENV{CUDACXX})
  else()
    set(nvcc ${SPEC_NVCC})
  endif()
  if(NOT nvcc)
    set(${out} "nvcc was not found" PARENT_SCOPE)
    return()
  endif()
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET)
  string(REGEX MATCH "release ([0-9.]+)" text "${text}")
  if(CMAKE_MATCH_1 VERSION_LESS 12.4)
    set(${out} "${nvcc} is release ${CMAKE_MATCH_1}, 12.4 or newer is needed" PARENT_SCOPE)
    return()
  endif()
  set(CMAKE_CUDA_COMPILER ${nvcc} CACHE FILEPATH "CUDA compiler")
endfunction()

# Sets `out` to the architectures that the toolkit has code for, of those that the backend is made for: Ampere, Ada, Hopper,
# Blackwell. The last one's PTX is there for what is newer.
function(spec_cuda_architectures out)
  execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --list-gpu-arch OUTPUT_VARIABLE known ERROR_QUIET)
  set(list)
  foreach(number 80 86 89 90 100 120)
    if(known MATCHES "compute_${number}\n")
      list(APPEND list ${number}-real)
      set(last ${number})
    endif()
  endforeach()
  set(${out} ${list} ${last}-virtual PARENT_SCOPE)
endfunction()

set(SPEC_WITH_CUDA OFF)
set(cuda_reason "SPEC_CUDA=OFF")
if(NOT SPEC_CUDA STREQUAL OFF)
  spec_find_cuda(cuda_reason)
  if(NOT cuda_reason)
    if(NOT SPEC_CUDA_ARCHITECTURES)
      spec_cuda_architectures(SPEC_CUDA_ARCHITECTURES) # a variable of this run: another toolkit has others
    endif()
    set(CMAKE_CUDA_ARCHITECTURES ${SPEC_CUDA_ARCHITECTURES})
    enable_language(CUDA)
    find_package(CUDAToolkit REQUIRED)
    set(SPEC_WITH_CUDA ON)
  elseif(NOT SPEC_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "SPEC_CUDA=ON, but ${cuda_reason}")
  endif()
endif()

# ----------------------------------------------------------------------------------------- tests ---

set(SPEC_WITH_TESTS OFF)
set(tests_reason "SPEC_TESTS=OFF")
if(SPEC_TESTS)
  pkg_check_modules(cmocka QUIET IMPORTED_TARGET cmocka)
  set(tests_reason "cmocka was not found (Debian, Ubuntu: apt-get install libcmocka-dev)")
  if(cmocka_FOUND)
    set(SPEC_WITH_TESTS ON)
  elseif(NOT SPEC_TESTS STREQUAL AUTO)
    message(FATAL_ERROR "SPEC_TESTS=ON, but ${tests_reason}")
  endif()
endif()
