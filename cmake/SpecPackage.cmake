# Packages of what is installed: `cpack -G DEB` or `cpack -G TGZ` in the build directory.
set(CPACK_GENERATOR TGZ)
set(CPACK_PACKAGE_VENDOR "the spec contributors")
set(CPACK_PACKAGE_CONTACT "the spec contributors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_DESCRIPTION
"More than one token out of a pass of a language model, without changing what
the model says: for transformers, state-space models and hybrids of them.
This package has the library, shared and static, its headers and the program.")
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)

# Debian: one package of the library, its headers and the program. What they link is found by dpkg-shlibdeps. What a static
# link needs besides, and what is loaded where it is there, are suggestions.
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS ${spec_debian_packages})
if(SPEC_BLAS)
  list(PREPEND CPACK_DEBIAN_PACKAGE_SUGGESTS libopenblas0)
endif()
list(JOIN CPACK_DEBIAN_PACKAGE_SUGGESTS ", " CPACK_DEBIAN_PACKAGE_SUGGESTS)
if(SPEC_WITH_CUDA) # which need not have come in packages; then nothing depends on it
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CUDAToolkit_LIBRARY_DIR})
endif()
include(CPack)
