# Debian packages by CPack: tessera-checkpoint, libtessera0.2, libtessera-dev; for live state dicts libtessera-live0.2,
# libtessera-live-dev; for MPI tessera-checkpoint-mpi, libtessera-mpi0.2, libtessera-mpi-dev. The libraries' packages have the
# names of the libraries, as Debian wants. How to make them is in samples/packaging/README.md.
set(TSR_MAINTAINER "Tessera authors <tessera@users.noreply.github.com>" CACHE STRING "maintainer field of packages")
set(libraries libtessera${TSR_SOVERSION})
set(components "")
set(CPACK_PACKAGE_NAME tessera-checkpoint)
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/need_page.cmake "if(NOT EXISTS \"${PROJECT_SOURCE_DIR}/web/dist/index.html\")
  message(FATAL_ERROR \"the packages need the viewer's page: run web/build first\")
endif()\n")
set(CPACK_INSTALL_SCRIPTS ${CMAKE_CURRENT_BINARY_DIR}/need_page.cmake)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT ${TSR_MAINTAINER})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_ENABLE_COMPONENT_DEPENDS ON)
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_CURRENT_BINARY_DIR}) # libtessera, for the libraries beside it
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)

set(CPACK_DEBIAN_TESSERA_PACKAGE_NAME tessera-checkpoint)
set(CPACK_DEBIAN_TESSERA_PACKAGE_CONFLICTS tessera) # the name of 0.2 and earlier; it has the same files
set(CPACK_DEBIAN_TESSERA_PACKAGE_REPLACES tessera)
set(CPACK_DEBIAN_TESSERA_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TESSERA_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TESSERA_PACKAGE_RECOMMENDS libcurl4) # loaded when an address is read
set(CPACK_COMPONENT_TESSERA_DESCRIPTION "inspect, validate, diff, convert and reshard PyTorch checkpoints
Tessera reads distributed checkpoints (DCP), torch.save files and safetensors
without Python, without executing pickle and without loading the model into
memory.")

set(CPACK_DEBIAN_LIB_PACKAGE_NAME ${libraries})
set(CPACK_DEBIAN_LIB_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIB_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIB_PACKAGE_RECOMMENDS libcurl4)
set(CPACK_DEBIAN_LIB_PACKAGE_MULTIARCH same)
set(CPACK_DEBIAN_LIB_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/shlibs ${CMAKE_CURRENT_BINARY_DIR}/triggers)
set(CPACK_COMPONENT_LIB_DESCRIPTION "checkpoints of distributed PyTorch training (shared library)
Tessera reads distributed checkpoints (DCP), torch.save files and safetensors
without Python, without executing pickle and without loading the model into
memory. This package contains the shared library.")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/shlibs "libtessera ${TSR_SOVERSION} ${libraries} (>= ${PROJECT_VERSION})\n")
file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/triggers "activate-noawait ldconfig\n")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libtessera-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "${libraries} (= ${PROJECT_VERSION}-1), libcjson-dev")
set(CPACK_DEBIAN_DEV_PACKAGE_MULTIARCH same)
foreach(package libisal libcrypto libzstd libxxhash)
  if(package IN_LIST TSR_REQUIRES)
    string(REPLACE libcrypto libssl package ${package})
    string(APPEND CPACK_DEBIAN_DEV_PACKAGE_DEPENDS ", ${package}-dev")
  endif()
endforeach()
set(CPACK_COMPONENT_DEV_DESCRIPTION "checkpoints of distributed PyTorch training (development files)
Tessera reads distributed checkpoints (DCP), torch.save files and safetensors
without Python, without executing pickle and without loading the model into
memory. This package contains headers, the static library and the files for
CMake and pkg-config.")

# The same for each further part; its program is a package only where there is one.
foreach(part ${TSR_PARTS})
  string(TOUPPER ${part} upper)
  set(of ${part})
  if(part STREQUAL "live")
    set(of "live state")
  endif()
  set(needs "${libraries} (= ${PROJECT_VERSION}-1)")
  set(needs_dev "libtessera-${part}${TSR_SOVERSION} (= ${PROJECT_VERSION}-1), libtessera-dev (= ${PROJECT_VERSION}-1)")
  if(part STREQUAL "cuda")
    string(APPEND needs ", libtessera-live${TSR_SOVERSION} (= ${PROJECT_VERSION}-1)")
    string(APPEND needs_dev ", libtessera-live-dev (= ${PROJECT_VERSION}-1)")
  endif()
  set(CPACK_DEBIAN_LIB_${upper}_PACKAGE_NAME libtessera-${part}${TSR_SOVERSION})
  set(CPACK_DEBIAN_LIB_${upper}_PACKAGE_SECTION libs)
  set(CPACK_DEBIAN_LIB_${upper}_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_LIB_${upper}_PACKAGE_MULTIARCH same)
  set(CPACK_DEBIAN_LIB_${upper}_PACKAGE_DEPENDS "${needs}")
  set(CPACK_DEBIAN_LIB_${upper}_PACKAGE_CONTROL_EXTRA ${CMAKE_CURRENT_BINARY_DIR}/${part}/shlibs ${CMAKE_CURRENT_BINARY_DIR}/triggers)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/${part}/shlibs
    "libtessera-${part} ${TSR_SOVERSION} libtessera-${part}${TSR_SOVERSION} (>= ${PROJECT_VERSION})\n")
  set(CPACK_COMPONENT_LIB_${upper}_DESCRIPTION "checkpoints of distributed PyTorch training (shared library for ${of})
Tessera reads distributed checkpoints (DCP), torch.save files and safetensors
without Python and without loading the model into memory. This package
contains the shared library for ${of}.")
  set(CPACK_DEBIAN_DEV_${upper}_PACKAGE_NAME libtessera-${part}-dev)
  set(CPACK_DEBIAN_DEV_${upper}_PACKAGE_SECTION libdevel)
  set(CPACK_DEBIAN_DEV_${upper}_PACKAGE_MULTIARCH same)
  set(CPACK_DEBIAN_DEV_${upper}_PACKAGE_DEPENDS "${needs_dev}")
  set(CPACK_COMPONENT_DEV_${upper}_DESCRIPTION "checkpoints of distributed PyTorch training (development files for ${of})
Tessera reads distributed checkpoints (DCP), torch.save files and safetensors
without Python and without loading the model into memory. This package
contains the headers and libraries for ${of}.")
  list(APPEND components lib_${part} dev_${part})
endforeach()
if(TARGET tessera-mpi)
  set(CPACK_DEBIAN_DEV_MPI_PACKAGE_DEPENDS "${CPACK_DEBIAN_DEV_MPI_PACKAGE_DEPENDS}, libopenmpi-dev")
  set(CPACK_DEBIAN_TESSERA_MPI_PACKAGE_NAME tessera-checkpoint-mpi)
  set(CPACK_DEBIAN_TESSERA_MPI_PACKAGE_CONFLICTS tessera-mpi)
  set(CPACK_DEBIAN_TESSERA_MPI_PACKAGE_REPLACES tessera-mpi)
  set(CPACK_DEBIAN_TESSERA_MPI_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_TESSERA_MPI_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_TESSERA_MPI_PACKAGE_DEPENDS "tessera-checkpoint (= ${PROJECT_VERSION}-1)")
  set(CPACK_COMPONENT_TESSERA_MPI_DESCRIPTION "checkpoints of PyTorch training, checked and converted by MPI ranks
Tessera reads distributed checkpoints (DCP), torch.save files and safetensors
without Python and without loading the model into memory. This program shares
the work between the ranks of an MPI job.")
  list(APPEND components tessera_mpi)
endif()

# What Debian wants in each package: the licence and a changelog.
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" AND TSR_GZIP)
  file(READ ${PROJECT_SOURCE_DIR}/LICENSE TSR_LICENSE)
  string(STRIP "${TSR_LICENSE}" TSR_LICENSE)
  string(REGEX REPLACE "^MIT License\n+(Copyright[^\n]*)\n+" "" TSR_LICENSE "${TSR_LICENSE}")
  set(TSR_COPYRIGHT "${CMAKE_MATCH_1}")
  string(REGEX REPLACE "Copyright \\(c\\) " "" TSR_COPYRIGHT "${TSR_COPYRIGHT}")
  string(REGEX REPLACE "\n\n" "\n.\n" TSR_LICENSE "${TSR_LICENSE}")
  string(REGEX REPLACE "\n" "\n " TSR_LICENSE "${TSR_LICENSE}")
  configure_file(copyright.in copyright @ONLY)
  execute_process(COMMAND date -u -R -d ${TSR_RELEASED} OUTPUT_VARIABLE TSR_RELEASED_AT OUTPUT_STRIP_TRAILING_WHITESPACE)
  configure_file(changelog.in changelog.Debian @ONLY)
  execute_process(COMMAND ${TSR_GZIP} -9nkf ${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian)
  foreach(component tessera lib dev ${components})
    string(TOUPPER ${component} upper)
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/copyright ${CMAKE_CURRENT_BINARY_DIR}/changelog.Debian.gz
      DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${upper}_PACKAGE_NAME} COMPONENT ${component})
  endforeach()
endif()
include(CPack)
