typedef int wefti_placeholder;
