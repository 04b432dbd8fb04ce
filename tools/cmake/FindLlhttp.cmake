# llhttp: the distribution's library where there is one (libllhttp-dev), otherwise the C
# sources that Debian 12 ships in the package node-llhttp.
find_path(LLHTTP_INCLUDE_DIR llhttp.h PATH_SUFFIXES llhttp HINTS /usr/share/include)
find_library(LLHTTP_LIBRARY llhttp)
find_path(LLHTTP_SOURCE_DIR llhttp.c PATHS /usr/share/llhttp)
include(FindPackageHandleStandardArgs)
if(LLHTTP_LIBRARY)
  find_package_handle_standard_args(Llhttp REQUIRED_VARS LLHTTP_LIBRARY LLHTTP_INCLUDE_DIR)
else()
  find_package_handle_standard_args(Llhttp REQUIRED_VARS LLHTTP_SOURCE_DIR LLHTTP_INCLUDE_DIR)
endif()
if(Llhttp_FOUND AND NOT TARGET Llhttp::Llhttp)
  if(LLHTTP_LIBRARY)
    add_library(Llhttp::Llhttp UNKNOWN IMPORTED)
    set_target_properties(Llhttp::Llhttp PROPERTIES IMPORTED_LOCATION ${LLHTTP_LIBRARY})
    target_include_directories(Llhttp::Llhttp SYSTEM INTERFACE ${LLHTTP_INCLUDE_DIR})
  else()
    set(LLHTTP_SOURCES ${LLHTTP_SOURCE_DIR}/llhttp.c ${LLHTTP_SOURCE_DIR}/api.c
      ${LLHTTP_SOURCE_DIR}/http.c)
    # Compiled into weft_http itself (see http/CMakeLists.txt): nothing else to install.
    add_library(Llhttp::Llhttp INTERFACE IMPORTED)
    target_include_directories(Llhttp::Llhttp SYSTEM INTERFACE ${LLHTTP_INCLUDE_DIR})
  endif()
endif()
