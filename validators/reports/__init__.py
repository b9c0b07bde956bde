"""Reports of validations for people and programs: JSON, JUnit XML, SARIF, HTML and Markdown, each from the JSON."""
