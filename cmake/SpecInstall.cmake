# Installs headers, libraries, the program, the CMake package and spec.pc; the licence, documents and examples.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/spec)

install(FILES ${PROJECT_SOURCE_DIR}/spec.h ${PROJECT_SOURCE_DIR}/spec_trees.h ${PROJECT_SOURCE_DIR}/spec_lab.h ${PROJECT_SOURCE_DIR}/backends/spec_backend.h
  ${PROJECT_SOURCE_DIR}/backends/spec_blocks.h ${PROJECT_SOURCE_DIR}/backends/spec_draw.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS spec spec-static EXPORT spec-targets)
if(TARGET spec-cuda) # a plugin: it has its place beside libspec.so, nobody links it
  install(TARGETS spec-cuda LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} RUNTIME DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
if(TARGET spec-cuda-static)
  set_target_properties(spec-cuda-static PROPERTIES EXPORT_NAME cuda-static OUTPUT_NAME spec-cuda)
  target_link_libraries(spec-cuda-static INTERFACE stdc++) # for applications in C
  install(TARGETS spec-cuda-static EXPORT spec-targets)
  install(FILES ${PROJECT_SOURCE_DIR}/backends/cuda/spec_cuda.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
endif()
if(TARGET spec-cli)
  install(TARGETS spec-cli)
endif()

install(EXPORT spec-targets NAMESPACE spec:: DESTINATION ${package_dir})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/spec-config.cmake.in ${PROJECT_BINARY_DIR}/spec-config.cmake
  INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/spec-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/spec-config.cmake ${PROJECT_BINARY_DIR}/spec-config-version.cmake
  DESTINATION ${package_dir})

# spec.pc: relocatable; Libs.private is what a static link needs besides.
set(pc_libs_private "")
foreach(package ${spec_packages})
  string(MAKE_C_IDENTIFIER ${package} id)
  list(APPEND pc_libs_private ${${id}_LDFLAGS})
endforeach()
list(APPEND pc_libs_private -lpthread -ldl -lm)
list(REMOVE_DUPLICATES pc_libs_private)
list(JOIN pc_libs_private " " pc_libs_private)
file(RELATIVE_PATH pc_prefix ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
file(RELATIVE_PATH pc_include ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${CMAKE_CURRENT_LIST_DIR}/spec.pc.in ${PROJECT_BINARY_DIR}/spec.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/spec.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# As they lie in the tree, so that the links among them work. Those to sources and reports lead nowhere.
set(doc_dir ${CMAKE_INSTALL_DATAROOTDIR}/doc/spec)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${doc_dir})
if(PROJECT_IS_TOP_LEVEL)
  file(GLOB documents CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.md ${PROJECT_SOURCE_DIR}/docs/*.png)
  file(GLOB examples CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.c ${PROJECT_SOURCE_DIR}/examples/*.py)
  install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md ${PROJECT_SOURCE_DIR}/CONTRIBUTING.md
    DESTINATION ${doc_dir})
  install(FILES ${documents} DESTINATION ${doc_dir}/docs)
  install(FILES ${PROJECT_SOURCE_DIR}/docs/bench/README.md DESTINATION ${doc_dir}/docs/bench)
  install(FILES ${examples} ${PROJECT_SOURCE_DIR}/examples/CMakeLists.txt DESTINATION ${doc_dir}/examples)
endif()
